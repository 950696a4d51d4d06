"""`scannable doctor`."""

import sys


def doctor() -> None:
    """Say what is installed, what is missing and how to get it.

    Versions, devices, threads and caches; it exits with 1 if something is missing that everything needs.

    Example:
        scannable doctor
    """
    from scannable.cli.health import CORE, examined

    # Only what comes with Python is imported before torch: it has to work where little else does.
    sections = examined()
    for title, findings in sections.items():
        print(f"\n{title}" if title != next(iter(sections)) else title)
        for finding in findings:
            mark = "ok" if finding.fine else "--"
            print(f"  {mark}  {finding.name:<14}{finding.says}")
            if not finding.fine and finding.remedy:
                print(f"      {'':<14}{finding.remedy}")
    if not all(finding.fine for finding in sections[CORE]):
        sys.exit(1)
