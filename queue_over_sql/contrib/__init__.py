"""Adapters for other frameworks, such as Django; each needs that framework."""
