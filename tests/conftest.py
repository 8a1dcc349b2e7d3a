"""Double precision unless a test asks for float32 by dtype, and no implicit promotion."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def x32():
    """A session without 64-bit types, as users have by default."""
    with jax.enable_x64(False):
        yield
