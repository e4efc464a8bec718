"""OpenAI's files and batches, kept in Redis.

``files`` stores uploads and results line by line, ``store`` the description and status of each batch.
``runner`` takes due batches under a lease and ends them, ``line_runner`` makes one line's requests and waits
for their results, ``lines`` parses input lines and writes output lines.
"""
