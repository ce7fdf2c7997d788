"""A repair of Triton's interpreter, used only where it runs the kernels."""

from __future__ import annotations

import triton.runtime.interpreter as interpreter


def repair() -> None:
    """Let loaded scalars bound a loop: the interpreter holds a scalar as an array of one element, which NumPy 2.4 and
    newer no longer turn into an integer by int()."""
    original = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # type: ignore[attr-defined]

    interpreter._patch_lang_tensor = patched
