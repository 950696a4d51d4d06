"""What was tried, how often, and what went wrong."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Tries and failures, counted for each fault of each part."""

    rows: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, part: str, what: str, wrong: list[str]) -> None:
        """One more try; it failed if anything is in `wrong`."""
        row = self.rows.setdefault((part, what), [0, 0])
        row[0] += 1
        if wrong:
            row[1] += 1
            self.failures.append(f"{part}, {what}: {'; '.join(wrong)}")
            print(f"FAILED  {self.failures[-1]}", flush=True)

    def table(self) -> str:
        lines = [f"{'part':<14}{'what':<56}{'tried':>7}{'failed':>8}"]
        lines += [f"{part:<14}{what:<56}{tried:>7}{failed:>8}" for (part, what), (tried, failed) in self.rows.items()]
        return "\n".join(lines)
