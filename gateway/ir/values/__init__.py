"""Values of JSON and numbers of other forms, which become elements of tensors."""
