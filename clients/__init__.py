"""What a backend imports: the wire contract, the clients. Imports no torch."""
