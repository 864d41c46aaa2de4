"""What federated averaging accepts as arguments."""

from adadp.privacy import arguments

PRIVACY = {"max_grad_norm", "noise_multiplier", "clipping", "max_physical_batch_size"}


def check_settings(privacy, *, reduction, **values) -> None:
    """Refuse settings with which nothing can be run, naming them.

    Raises:
        ValueError, TypeError: see :class:`adadp.federated.FederatedAveraging`.
    """
    arguments.function("client_optimizer", values["client_optimizer"], "parameters -> optimizer")
    arguments.function("loss", values["loss"], "(output, y) -> one value an example")
    for name, low in (("batch_size", 1), ("local_epochs", 1), ("trace", 0)):
        arguments.count(name, values[name], low=low)
    arguments.real("participation", values["participation"], high=1, open_low=True)
    arguments.flag("keep_lr", values["keep_lr"])
    arguments.delta(values["delta"])
    arguments.choice("reduction", reduction, ("mean", "sum"))
    if privacy is not None:
        _check_privacy(privacy)
        if reduction != "mean":
            raise ValueError("reduction='sum' has no meaning with privacy: private gradients are averaged")


def check_clients(clients) -> None:
    """At least one, and each with as many labels as inputs."""
    if len(clients) == 0:
        raise ValueError("clients must hold at least one (x, y)")
    for number, (x, y) in enumerate(clients):
        check_data(f"clients[{number}]", x, y)


def check_data(name: str, x, y) -> None:
    """Some examples, and as many labels."""
    if len(x) == 0:
        raise ValueError(f"{name} has no data: leave it out")
    if len(x) != len(y):
        raise ValueError(f"{name} has {len(x)} inputs but {len(y)} labels")


def _check_privacy(privacy) -> None:
    """Known keywords only; their values are those of :class:`adadp.PrivateGradient`, which checks the rest."""
    if set(privacy) - PRIVACY:
        raise ValueError(f"privacy takes {', '.join(sorted(PRIVACY))}, got {', '.join(sorted(privacy))}")
    if not {"max_grad_norm", "noise_multiplier"} <= set(privacy):
        raise ValueError("privacy needs max_grad_norm and noise_multiplier")
    arguments.noise_multiplier(privacy["noise_multiplier"])
    arguments.max_grad_norm(privacy["max_grad_norm"])
