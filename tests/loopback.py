"""A web server on this machine that misbehaves as asked."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Loopback:
    """answers: path → what happens there. requests: (path, Range header) in order of arrival."""

    port: int
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def serve() -> Iterator[Loopback]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            loopback.requests.append((self.path, self.headers["Range"]))
            with suppress(BrokenPipeError, ConnectionResetError):  # the client has had enough
                loopback.answers[self.path](self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    loopback = Loopback(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def respond(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, object], body: bytes = b""
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(body)


def whole(content: bytes, bytes_per_s: float | None = None) -> Answer:
    """A good server: the file, or the range asked for; slowly if a rate is given."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers["Range"]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content):
            handler.send_error(416)
            return
        headers: dict[str, object] = {"Content-Length": len(content) - start}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        respond(handler, 206 if asked else 200, headers)
        step = len(content) if bytes_per_s is None else max(1, int(bytes_per_s / 100))
        for at in range(start, len(content), step):
            handler.wfile.write(content[at : at + step])
            if bytes_per_s is not None:
                time.sleep(0.01)

    return answer


def without_ranges(content: bytes) -> Answer:
    return lambda handler: respond(handler, 200, {"Content-Length": len(content)}, content)


def cut_once(content: bytes, after: int, then: Answer) -> Answer:
    """Promises everything and hangs up after so many bytes; from the second request on, `then`."""
    asked = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        if len(asked) > 1:
            return then(handler)
        respond(handler, 200, {"Content-Length": len(content)}, content[:after])

    return answer


def failing(code: int) -> Answer:
    return lambda handler: handler.send_error(code)


def silent(seconds: float) -> Answer:
    """Accepts the request and says nothing."""
    return lambda handler: time.sleep(seconds)
