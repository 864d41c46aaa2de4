"""Speed side by side with peers: ``make bench``, or ``python -m benchmarks.private_step``."""
