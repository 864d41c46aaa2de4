"""Sources of noise with a whole state of their own: torch's generators on a processor take 32 bits of a seed only."""

import secrets
from collections.abc import Sequence

import numpy as np
import torch

WORDS = 624  # of a Mersenne Twister; in the state each takes 8 bytes, after a head of 24


def secret_generator(device: str | torch.device = "cpu") -> torch.Generator:
    """A source that nobody else can follow: whoever knew its seed, or tried all of them, could take the noise away.

    It is as secret as the system's random numbers. What it makes of them is not cryptography (see the page *Pitfalls*).

    >>> first, second = (torch.randn(3, generator=secret_generator()) for _ in range(2))
    >>> torch.equal(first, second)
    False
    """
    generator = torch.Generator(device).manual_seed(secrets.randbits(63))
    return _filled(generator, secrets.token_bytes(4 * WORDS))


def numbered_generator(numbers: Sequence[int], device: str | torch.device = "cpu") -> torch.Generator:
    """A source that follows from a few whole numbers from 0; for others it is another one.

    >>> draws = [torch.randn(3, generator=numbered_generator(numbers)) for numbers in ((0, 1), (0, 1), (1, 0))]
    >>> torch.equal(draws[0], draws[1]), torch.equal(draws[0], draws[2])
    (True, False)
    """
    words = np.random.SeedSequence(list(numbers)).generate_state(2 + WORDS, np.uint32)
    generator = torch.Generator(device).manual_seed((int(words[0]) << 31) ^ int(words[1]))
    return _filled(generator, words[2:].astype("<u4").tobytes())


def _filled(generator: torch.Generator, words: bytes) -> torch.Generator:
    """A generator whose state is these words, where it is a Mersenne Twister; others use all of their seed."""
    if generator.device.type == "cpu":
        state, drawn = generator.get_state(), torch.frombuffer(bytearray(words), dtype=torch.uint8)
        state[24 : 24 + 8 * WORDS].view(WORDS, 8)[:, :4] = drawn.view(WORDS, 4)
        generator.set_state(state)
    return generator
