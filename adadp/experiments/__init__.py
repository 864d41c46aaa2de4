"""The paper's experiments: configs, the resumable runner, stored results, verdicts."""
