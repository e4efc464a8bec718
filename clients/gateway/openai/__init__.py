"""OpenAI's completions API.

``chat_body`` and ``completion_body`` validate request bodies, over the fields of ``sampling_body``.
``completion`` makes one response object or a stream of chunks of the requests' events, in the shape of
``chat_format`` or ``completion_format``; ``placement`` finds each token's text offset and bytes for log-
probabilities, with the tokenizer's ``vocabulary``.
"""
