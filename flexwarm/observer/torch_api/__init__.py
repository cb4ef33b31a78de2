"""The only place that names private parts of torch; each name is probed, and a torch that lacks one is refused by name."""

from flexwarm.observer.torch_api.probe import TorchApi, resolve

__all__ = ["TorchApi", "resolve"]
