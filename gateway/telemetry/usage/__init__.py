"""What models were used for: counts, durations and rates."""
