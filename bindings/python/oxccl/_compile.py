"""What `torch.compile` is to leave alone."""

from __future__ import annotations

import types
from collections.abc import Iterator

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)


def leave_as_they_are(*modules: types.ModuleType) -> None:
    """Calls of these modules' functions are made as they are, not traced: as those of backends in
    C++ are."""
    # With all that they call.
    skipped = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for module in modules:
        for function in _functions(module):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = "a call of oxccl"  # type: ignore[attr-defined]
            set_code_exec_strategy(function.__code__, skipped)


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for own in vars(module).values():
        if getattr(own, "__module__", None) != module.__name__:
            continue
        for member in vars(own).values() if isinstance(own, type) else [own]:
            if isinstance(member, property):
                member = member.fget
            if isinstance(member, types.FunctionType):
                yield member
