"""`scannable models`."""


def models() -> None:
    """List the trained models that come with the package.

    What each is, how large, what it was trained on and what was found with it. `eval`, `generate` and `verify` take its
    name in place of a run.

    Example:
        scannable models
    """
    from scannable.weights.shipped_model import shipped, shipped_models

    names = shipped_models()
    indent = max((len(name) for name in names), default=0) + 2
    for name in names:
        about = shipped(name)
        size = f"{about.parameters:,} parameters, {about.nbytes / 1e6:.1f} MB"
        print(f"{name:<{indent}}{about.title}")
        print(f"{'':<{indent}}{size}; {about.which} weights, step {about.step:,}, {about.tokens / 1e6:,.1f} M tokens")
        print(f"{'':<{indent}}{about.found}")
