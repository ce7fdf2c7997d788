"""What clients send: adapters with their popularity, and one ordered stream of requests, synthetic or from a trace."""
