"""``/v1/ws``: the WebSocket."""

from fastapi import APIRouter, WebSocket

from ..gateway import gateway_of
from ..native.socket_session import SocketSession

router = APIRouter()


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    await socket.accept()
    await SocketSession(gateway_of(socket), socket).run()
