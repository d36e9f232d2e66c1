"""Recovery: claims of the dead, steps of the clock, unknown kinds, staged writes."""
