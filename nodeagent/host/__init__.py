"""The only code that touches the kernel and the driver."""
