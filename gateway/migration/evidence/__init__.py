"""What comparisons of a migration show: counts, guards and kept samples."""
