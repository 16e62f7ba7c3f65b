"""`/v1/queues` and `/v1/policy`: how the cluster is shared, and by which rules it decides."""

from aiohttp import web

from muster.api.answers import answer
from muster.api.bodies import read_json
from muster.api.configuring import not_right, remove_queue, set_policy, set_queues
from muster.api.parameters import flag, user_of
from muster.api.queue_views import policy_view, queue_answer, queue_page
from muster.api.reading import known_queue
from muster.api.service import SERVICE, moment_of
from muster.core.conversion import SpecError
from muster.core.policy_check import check_policy, check_queue, check_queues


async def list_queues(request: web.Request) -> web.Response:
    """All queues as a tree, each before those below it."""
    moment = await moment_of(request)
    return answer(queue_page(moment.cluster), moment.state.sequence)


async def show_queue_spec(request: web.Request) -> web.Response:
    """One queue, with what its fields come to and who holds what."""
    moment = await moment_of(request)
    return answer(queue_answer(moment.cluster, known_queue(moment, request.match_info["path"])), moment.state.sequence)


async def put_queues(request: web.Request) -> web.Response:
    """Make or change the queues named, and with `prune` remove those not named: all of it or nothing."""
    service, user = request.app[SERVICE], user_of(request)
    prune, dry_run = flag(request, "prune"), flag(request, "dry_run")
    try:
        wanted = check_queues(await read_json(request))
    except SpecError as error:
        raise not_right(error, "these are no queues that Muster can make", "invalid_queues") from error
    places = {queue.name: place for place, queue in enumerate(wanted)}

    def pointer(queue: str, field: str) -> str:
        return f"/queues/{places[queue]}/{field}" if queue in places else "/queues"

    changed = await set_queues(service, wanted, user, pointer, prune=prune, dry_run=dry_run)
    return answer(changed, changed.sequence)


async def put_queue(request: web.Request) -> web.Response:
    """Make or change one queue."""
    service, user, dry_run = request.app[SERVICE], user_of(request), flag(request, "dry_run")
    try:
        wanted = check_queue(await read_json(request), request.match_info["path"])
    except SpecError as error:
        raise not_right(error, "this is no queue that Muster can make", "invalid_queues") from error

    def pointer(_: str, field: str) -> str:
        return f"/{field}" if field else ""

    changed = await set_queues(service, [wanted], user, pointer, dry_run=dry_run)
    return answer(changed, changed.sequence)


async def delete_queue(request: web.Request) -> web.Response:
    """Remove a queue with no jobs and no queues in it."""
    changed = await remove_queue(request.app[SERVICE], request.match_info["path"], user_of(request))
    return answer(changed, changed.sequence)


async def show_policy(request: web.Request) -> web.Response:
    """The rules in force, every one of them, beside what each is by default."""
    moment = await moment_of(request)
    return answer(policy_view(moment.state), moment.state.sequence)


async def put_policy(request: web.Request) -> web.Response:
    """Decide by these rules from now on; what is left out is the default."""
    service, user, dry_run = request.app[SERVICE], user_of(request), flag(request, "dry_run")
    try:
        policy = check_policy(await read_json(request))
    except SpecError as error:
        raise not_right(error, "this is no policy that Muster can follow", "invalid_policy") from error
    done = await set_policy(service, policy, user, dry_run=dry_run)
    return answer(done, done.sequence)
