"""What is known about models: inputs, metadata, and who owns a sequence."""
