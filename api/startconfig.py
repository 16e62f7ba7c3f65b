"""The configuration that a program applies when it starts: checked before anything starts, in force before it takes a
job."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from muster.api.changes import policy_line, queue_lines
from muster.api.configfile import ConfigFile, in_file, read_config
from muster.api.configuring import set_policy, set_queues
from muster.api.jobfile import JobFileError
from muster.api.problems import ApiError
from muster.api.process import StartError
from muster.api.service import Service
from muster.api.telling import say
from muster.core.conversion import Problem, SpecError
from muster.core.policy_check import check_policy, check_queues, tree_problems
from muster.events.policy import Policy, QueueSpec
from muster.projections.follower import FollowerStoppedError


class StartConfig(NamedTuple):
    """A file's queues and policy (None = it says nothing of it), on whose word."""

    path: Path
    queues: list[QueueSpec]
    policy: Policy | None
    user: str


def read_start_config(path: Path, user: str) -> StartConfig:
    """Read and check a file; the queues that its own stand under are to be in it too. Raises JobFileError."""
    config = read_config(path)
    try:
        return _checked(config, user)
    except SpecError as error:
        lines = [f"  {problem.pointer or '/'}: {problem.detail}" for problem in error.problems]
        raise JobFileError("\n".join([f"{path} cannot be applied", *lines])) from error


def _checked(config: ConfigFile, user: str) -> StartConfig:
    problems: list[Problem] = []
    queues: list[QueueSpec] = []
    policy: Policy | None = None
    try:
        queues = check_queues({"queues": config.queues or []})
    except SpecError as error:
        problems += [problem._replace(pointer=in_file(problem.pointer)) for problem in error.problems]
    try:
        policy = None if config.policy is None else check_policy(config.policy)
    except SpecError as error:
        problems += [problem._replace(pointer=in_file(problem.pointer, "/policy")) for problem in error.problems]
    if not problems:
        problems = tree_problems({queue.name: queue for queue in queues}, policy or Policy())
        places = {queue.name: place for place, queue in enumerate(queues)}
        problems = [problem._replace(pointer=_place(problem.pointer, places)) for problem in problems]
    if problems:
        raise SpecError(problems)
    return StartConfig(config.path, queues, policy, user)


def _place(pointer: str, places: dict[str, int]) -> str:
    """A pointer into the tree as one into the file."""
    steps = pointer.split("/")
    if steps[1] != "queues" or len(steps) < 4:  # noqa: PLR2004 - "", queues, name, field
        return in_file(pointer)
    return f"/queue/{places[steps[2].replace('~1', '/').replace('~0', '~')]}/{steps[3]}"


async def apply_start_config(service: Service, config: StartConfig) -> None:
    """Apply it, and say what it changed. Raises StartError where the log has what it cannot go with."""
    try:
        await service.follower.changed(await service.log.last_sequence() - 1)  # a long log takes its time
        if config.queues:
            changed = await set_queues(service, config.queues, config.user, lambda queue, field: f"{queue} {field}")
            for line in queue_lines({**msgspec.to_builtins(changed), "unchanged": []}):
                say(line)
            _warn(changed.warnings)
        if config.policy is not None:
            done = await set_policy(service, config.policy, config.user)
            if not done.already:
                say(policy_line(msgspec.to_builtins(done)))
            _warn(done.warnings)
    except ApiError as error:
        details = [each.detail for each in error.view.errors] or [error.view.detail]
        words = dict.fromkeys([error.view.title, *filter(None, details)])
        message = f"{config.path} cannot be applied: {'; '.join(words)}"
        raise StartError(message, error.view.next_step) from error
    except FollowerStoppedError as error:
        raise StartError(str(error)) from error


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}", err=True)
