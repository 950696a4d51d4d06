"""One module for each command: what it takes, what it refuses, and what it does.

What a command takes is known without torch, which takes longer to import than all else together: help and mistakes are
answered at once, and a command imports what it works with when it begins to work.
"""
