"""Traces of every kind, and what is said of one that cannot be read."""

import gzip
import lzma
from pathlib import Path

import pytest

from muster.projections.trace_nodes import read_nodes, uniform
from muster.projections.traces import TraceError, read_trace

SECOND = 1_000_000_000
PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,b\n2017-10-09 06:13:03,1.5,8,12,a\n"
)


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_philly_is_put_in_order_of_its_wall_clock(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, PHILLY + "\n"))
    assert (trace.kind, trace.has_dates) == ("philly", True)
    assert [(job.user, job.gpus, job.duration_ns) for job in trace.jobs] == [
        ("a", 8, 1_500_000_000),
        ("b", 1, 66 * SECOND),
    ]
    assert trace.jobs[1].submitted_ns - trace.jobs[0].submitted_ns == (48 * 60 + 52) * SECOND


def test_compressed_traces_read_alike(tmp_path: Path) -> None:
    plain = read_trace(write(tmp_path, PHILLY))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(PHILLY.encode()))
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(PHILLY.encode()))
    assert read_trace(tmp_path / "a.csv.gz") == plain
    assert read_trace(tmp_path / "a.csv.xz") == plain


def test_itp_counts_seconds_and_keeps_the_order_of_one_moment(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\nx,16566,3890,4\ny,16566,10,1\nz,3,5,64\n"
    trace = read_trace(write(tmp_path, text))
    assert [(job.name, job.submitted_ns // SECOND, job.duration_ns // SECOND) for job in trace.jobs] == [
        ("z", 3, 5),
        ("x", 16566, 3890),
        ("y", 16566, 10),
    ]


def test_muri_counts_milliseconds_where_tiresias_counts_seconds(tmp_path: Path) -> None:
    muri = "job_id,num_gpu,submit_time,model_name,duration,iteration_time\n0,2,2500,dqn,60000,490\n"
    tiresias = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,2,30,606,vgg19,164,30\n"
    (of_muri,) = read_trace(write(tmp_path, muri)).jobs
    (of_tiresias,) = read_trace(write(tmp_path, tiresias)).jobs
    assert (of_muri.submitted_ns, of_muri.duration_ns) == (2_500_000_000, 60 * SECOND)
    assert (of_tiresias.submitted_ns, of_tiresias.duration_ns) == (30 * SECOND, 164 * SECOND)


def test_openb_has_shares_models_and_hosts(tmp_path: Path) -> None:
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    rows = "p0,6500,12288,1,460,V100M16|V100M32,10,25\np1,16000,1000,8,1000,,11,12\np2,1000,1,0,0,,12,\n"
    trace = read_trace(write(tmp_path, head + rows))
    share, whole = trace.jobs
    assert (share.cpus, share.memory_mib, share.compute, share.models) == (7, 12288, 460, ("V100M16", "V100M32"))
    assert (whole.gpus, whole.cpus, whole.memory_mib, whole.compute, whole.models) == (8, 2, 125, 1000, ())
    assert (share.submitted_ns, share.duration_ns, trace.left_out) == (10 * SECOND, 15 * SECOND, 1)


def test_swf_counts_from_the_start_in_its_head(tmp_path: Path) -> None:
    text = (
        "; Version: 2.2\n; UnixStartTime: 1000000000\n\n"
        " 1 5 2 100 4 -1 -1 8 3600 -1 1 7 1 -1 1 -1 -1 -1\n"
        " 2 6 -1 -1 -1 -1 -1 8 3600 -1 5 7 1 -1 1 -1 -1 -1\n"
        " 3 0 0 50 16 -1 -1 -1 -1 -1 1 -1 1 -1 1 -1 -1 -1\n"
    )
    trace = read_trace(write(tmp_path, text, "log.swf"))
    assert [(job.name, job.gpus, job.user, job.estimate_s) for job in trace.jobs] == [
        ("3", 16, "", 0),
        ("1", 8, "7", 3600),
    ]
    assert trace.jobs[1].submitted_ns == 1_000_000_005 * SECOND
    assert (trace.left_out, trace.has_dates) == (1, True)
    assert [job.name for job in trace.between("2001-09-09T01:46:41Z", "").jobs] == ["1"]


def test_both_ends_of_a_window_are_in_it(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\n" + "".join(f"j{at},{at},1,1\n" for at in range(5))
    trace = read_trace(write(tmp_path, text))
    assert [job.name for job in trace.between("1", "3").jobs] == ["j1", "j2", "j3"]
    assert trace.between("", "").jobs == trace.jobs
    with pytest.raises(TraceError, match="until 'noon': this trace is cut at seconds from its beginning"):
        trace.between("", "noon")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no kind of trace has the columns "),
        ("a,b\n1,2\n", "line 1: no kind of trace has the columns a, b; known: philly: "),
        (PHILLY + "2017-13-09 07:01:55,1,1,1,a\n", "line 4, column timestamp: '2017-13-09 07:01:55' is no date"),
        (PHILLY + "2017-10-09 07:01:55,x,1,1,a\n", "line 4, column duration: 'x' is no number"),
        (PHILLY + "2017-10-09 07:01:55,-1,1,1,a\n", "line 4, column duration: '-1' is not between 0 and"),
        (PHILLY + "2017-10-09 07:01:55,nan,1,1,a\n", "line 4, column duration: 'nan' is no number"),
        (PHILLY + "2017-10-09 07:01:55,1e300,1,1,a\n", "line 4, column duration: '1e300' is no number"),
        (PHILLY + "2017-10-09 07:01:55,1\n", "line 4, column num_gpus: missing"),
    ],
)
def test_an_error_names_file_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}, {message}")


def test_swf_errors_name_the_field(tmp_path: Path) -> None:
    path = write(tmp_path, "1 5 2 100 4\n", "log.swf")
    with pytest.raises(TraceError, match=r"log.swf, line 1, column 8 \(requested processors\): '' is missing"):
        read_trace(path)


def test_what_is_no_text_or_cannot_be_unpacked_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.csv.xz").write_bytes(b"no archive")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(PHILLY.encode())[:20])
    for name in ("a.csv", "b.csv.xz", "c.csv.gz", "missing.csv"):
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)


def test_nodes_are_read_by_their_columns(tmp_path: Path) -> None:
    nodes = read_nodes(write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"))
    assert nodes["n0"].cpus == 64
    assert [device.model for device in nodes["n0"].devices] == ["P100", "P100"]
    with pytest.raises(TraceError, match="line 3, column sn: 'n0' is the name of no node, or of one before"):
        read_nodes(write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\nn0,1,1,1,a\nn0,1,1,1,a\n"))
    assert list(uniform(10, 4))[:2] == ["node-01", "node-02"]
