"""JSON: values read within limits, long arrays of floats, and the errors of protocols."""
