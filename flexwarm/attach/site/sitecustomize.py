"""Python runs this when it starts, because the directory is first on PYTHONPATH: watch for torch, and give way.

Nothing happens in a program that never imports torch: a finder is added to ``sys.meta_path`` that says no to every other
name, and a function that does nothing to those of ``atexit``. Written for any Python 3.6 and later, because any interpreter
that the launch starts comes by here.
"""

import atexit
import sys
import time


def _last_words():
    """What a program registered with atexit before it imported torch runs after the observer's own: this runs after all."""
    witnesses = sys.modules.get("flexwarm.attach.witnesses")
    if witnesses is not None:
        witnesses.end()


def _give_way():
    """Take this directory off the path, and run the ``sitecustomize`` that Python would have found without it."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401 - the user's own, or the system's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # Python takes the module out of here again once this file is done, so there must be one.
        sys.modules.setdefault("sitecustomize", ours)


class _TorchFinder:
    """Runs the observer once torch has been imported; finds nothing itself.

    It stays until then: a program may ask whether there is a torch before it imports it, and try again after an error.
    """

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not cls else None
            if spec is not None:
                cls._follow(spec.loader)
                return spec
        return None

    @classmethod
    def _follow(cls, loader):
        if not hasattr(loader, "exec_module"):
            return
        load = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            began = time.perf_counter()
            load(module)
            seconds = time.perf_counter() - began
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not cls]
            _observe(seconds)

        loader.exec_module = exec_module


def _observe(import_seconds):
    """Import the observer from where the flexwarm that started the launch lies, without a change of the path."""
    import importlib.util
    import json
    import os

    told = os.environ.get("FLEXWARM_OBSERVE", "")
    try:
        with open(told) as file:
            observation = json.load(file)
    except (OSError, ValueError):
        return  # the launch is over, or on another machine that does not share its store
    try:
        if "flexwarm" not in sys.modules:
            package = os.path.join(observation["home"], "flexwarm")
            spec = importlib.util.spec_from_file_location(
                "flexwarm", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules["flexwarm"] = module
            spec.loader.exec_module(module)
        from flexwarm.attach import witnesses

        witnesses.attach(observation)
        witnesses.torch_took(import_seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program is the user's and goes on; the parent is told
        line = {
            "event": "refused",
            "t": time.time(),
            "message": f"the observer could not begin: {type(error).__name__}: {error}",
            "hint": "run flexwarm with the Python that the launch uses",
        }
        name = f"{os.getpid()}.refused.jsonl"
        try:
            with open(os.path.join(observation["directory"], name), "a") as file:
                file.write(json.dumps(line) + "\n")
        except (OSError, KeyError, TypeError):
            pass  # nobody is there to be told: this program then counts as one that could not be observed


atexit.register(_last_words)
sys.meta_path.insert(0, _TorchFinder)
_give_way()
