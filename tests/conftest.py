"""Double precision throughout, except where a test asks for float32 by dtype."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture
def x32():
    """A session without 64-bit types, as users have by default."""
    with jax.enable_x64(False):
        yield
