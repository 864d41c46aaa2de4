"""What federated averaging accepts as arguments."""


def check_arguments(clients, batch_size, local_epochs, participation, reduction, privacy, stacked) -> None:
    """Refuse what cannot be run, naming it.

    Raises:
        ValueError: see :class:`adadp.federated.FederatedAveraging`.
    """
    if len(clients) == 0:
        raise ValueError("clients must hold at least one (x, y)")
    for number, (x, y) in enumerate(clients):
        if len(x) == 0:
            raise ValueError(f"clients[{number}] has no data: leave it out")
        if len(x) != len(y):
            raise ValueError(f"clients[{number}] has {len(x)} inputs but {len(y)} labels")
    for name, value in (("batch_size", batch_size), ("local_epochs", local_epochs)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if not 0 < participation <= 1:
        raise ValueError(f"participation must be above 0 and at most 1, got {participation}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    if stacked not in (True, False, None):
        raise ValueError(f"stacked must be True, False or None, got {stacked!r}")
    if privacy is not None:
        if set(privacy) - {"max_grad_norm", "noise_multiplier", "clipping", "max_physical_batch_size"}:
            raise ValueError(f"privacy takes max_grad_norm, noise_multiplier, clipping, got {sorted(privacy)}")
        if not {"max_grad_norm", "noise_multiplier"} <= set(privacy):
            raise ValueError("privacy needs max_grad_norm and noise_multiplier")
        if reduction != "mean":
            raise ValueError("reduction='sum' has no meaning with privacy: private gradients are averaged")
