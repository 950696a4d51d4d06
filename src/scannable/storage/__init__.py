"""What goes to disk and comes back: configurations, states, models, and folders that are whole or not there."""
