"""Tensors are tensors here."""


def wrap_tensor(tensor):
    return tensor


def unwrap_tensor(tensor):
    assert tensor.is_contiguous()
    return tensor
