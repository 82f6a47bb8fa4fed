"""Lists of tensors as one piece of memory, which is what collectives take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def check_types(tensor: Tensor, others: Sequence[Tensor]) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise ValueError(f"tensors of {tensor.dtype} and {other.dtype} in one call")


def counts_of(tensors: Sequence[Tensor]) -> list[int] | None:
    """How many elements each has, where that differs."""
    counts = [tensor.numel() for tensor in tensors]
    return None if len(set(counts)) == 1 else counts


def _is_in_one_piece(tensors: Sequence[Tensor]) -> bool:
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.data_ptr() != address:
            return False
        address += tensor.numel() * tensor.element_size()
    storage = tensors[0].untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() == storage for tensor in tensors)


def _one_piece(tensors: Sequence[Tensor]) -> Tensor:
    count = sum(tensor.numel() for tensor in tensors)
    return tensors[0].detach().as_strided((count,), (1,))


def gathered(tensors: Sequence[Tensor]) -> Tensor:
    """All tensors behind one another, copied only where they do not lie so."""
    if _is_in_one_piece(tensors):
        return _one_piece(tensors)
    counts = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor, part in zip(tensors, flat.split(counts), strict=True):
        part.view(tensor.shape).copy_(tensor.detach())
    return flat


def scattered(
    tensors: Sequence[Tensor],
) -> tuple[Tensor, list[int] | None, Callable[[], None] | None]:
    """Memory for all tensors behind one another; how many elements each has, where that differs;
    and what copies them to where they belong, where they do not lie so."""
    if _is_in_one_piece(tensors):
        return _one_piece(tensors), counts_of(tensors), None
    counts = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)

    def finish() -> None:
        for tensor, part in zip(tensors, flat.split(counts), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    return flat, counts_of(tensors), finish


def split_counts(tensor: Tensor, splits: list[int] | None, size: int) -> list[int]:
    rows = tensor.size(0)
    if not splits:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be split evenly among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"splits {splits} do not fit {rows} rows and {size} ranks")
    row = tensor.numel() // rows if rows else 0
    return [split * row for split in splits]
