"""Read by transformers if this folder is loaded with trust_remote_code=True."""

try:
    from scannable.hf import ScannableConfig
except ImportError as error:
    raise ImportError(
        "this model needs the package scannable, with its extra for transformers: pip install 'scannable[hf]' "
        f"({error})"
    ) from error

__all__ = ["ScannableConfig"]
