"""`corral plan --server`: whether a model would fit on a running server, and what would go."""

from typing import TYPE_CHECKING

from corral.cli.client import Client
from corral.cli.output import print_json, say
from corral.memory.ledger import format_bytes

if TYPE_CHECKING:
    from corral.contract.fleet import PlanAnswer


def plan_there(address: str, model: str, *, is_json: bool) -> int:
    """Print what a server says, and return the exit code: 1 if there will never be room."""
    from corral.contract.fleet import Verdict, plan_answer_of

    reply = Client(address).post("/plan", {"model": model})
    answer = plan_answer_of(reply)
    if is_json:
        print_json(reply)
    else:
        say(_text(answer))
    return 1 if answer.verdict is Verdict.NEVER else 0


def _text(answer: "PlanAnswer") -> str:
    from corral.contract.fleet import Verdict

    held = ", ".join(f"{format_bytes(one.planned_bytes)} of {one.device}" for one in answer.held)
    match answer.verdict:
        case Verdict.LOADED:
            return f"{answer.model} is loaded: {held}"
        case Verdict.FITS:
            return f"{answer.model} fits: {held}"
        case Verdict.EVICTS:
            return f"{answer.model} fits when {' and '.join(answer.evicts)} has gone: {held}"
        case Verdict.WAITS:
            return f"{answer.model} would wait: {answer.reason}"
        case Verdict.NEVER:
            return f"{answer.model} does not fit: {answer.reason}"
