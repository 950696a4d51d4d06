"""How a run is spread over processes: which is no part of the recipe, since it changes no number that is computed."""

from dataclasses import dataclass

from scannable.storage.checked_fields import check_fields


@dataclass(frozen=True)
class Parallel:
    """Processes in a mesh of data x sequence. Under torchrun; alone, all of it is 1."""

    data: int | None = None
    """Into how many shares the samples of a step go; by default as many as there are processes for."""
    sequence: int = 1
    """Over how many processes each sample is split, between chunks."""
    shard: bool = False
    """Split weights, gradient and optimizer over all processes (FSDP2), instead of a copy for each."""
    timeout: float = 600.0
    """Seconds after which a process that does not come to an exchange is given up, and the run ends with its name."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("data", "sequence"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of processes, 1 or above")
        if not 0 < self.timeout < 1e9:
            raise ValueError(f"timeout={self.timeout!r} must be a number of seconds above 0")

    def shape(self, count: int) -> tuple[int, int]:
        """Data and sequence, for so many processes."""
        data = max(1, count // self.sequence) if self.data is None else self.data
        if data * self.sequence != count:
            ask = f"--nproc-per-node {data * self.sequence}"
            raise ValueError(
                f"a mesh of data={data} x sequence={self.sequence} takes {data * self.sequence} processes, but there "
                f"are {count}; start torchrun with {ask}, or choose sizes whose product is {count}"
            )
        return data, self.sequence
