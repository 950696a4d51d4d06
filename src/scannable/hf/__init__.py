"""Bridges to Hugging Face."""
