"""Files of tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from mqe.tensor_files import read_tensors


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    path = tmp_path / "actor.pt"
    torch.save({"weight": torch.tensor([0.5, 1 / 3]).half(), "count": torch.tensor(3)}, path)
    tensors = read_tensors(path)
    assert tensors["weight"].dtype == torch.float32
    assert tensors["weight"].tolist() == [0.5, 0.333251953125]
    assert tensors["count"].dtype == torch.int64
