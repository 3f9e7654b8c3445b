"""Search spaces, one per pipeline family, registered by target."""
