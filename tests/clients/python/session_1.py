"""A connection by version 1 of the official Python SDK."""
import contextlib

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamablehttp_client

MODES = ("legacy",)


class Connection:
    def __init__(self, session, protocol):
        self._session, self.protocol = session, protocol

    async def tools(self):
        found, cursor = [], None
        while True:
            page = await self._session.list_tools(cursor)
            found += page.tools
            cursor = page.nextCursor
            if not cursor:
                return {tool.name: tool.inputSchema for tool in found}

    async def call(self, tool, arguments):
        """Is it an error, the structured content, the text."""
        result = await self._session.call_tool(tool, arguments)
        return result.isError, result.structuredContent, "\n".join(part.text for part in result.content if part.type == "text")


@contextlib.asynccontextmanager
async def connect(url, token, mode):
    assert mode in MODES
    headers = {"Authorization": f"Bearer {token}"}
    async with streamablehttp_client(url, headers=headers, timeout=60) as (read, write, _):
        async with ClientSession(read, write) as session:
            hello = await session.initialize()
            yield Connection(session, hello.protocolVersion)


@contextlib.asynccontextmanager
async def connect_bridge(command, environment, mode):
    """Through a program that speaks MCP on its standard input and output."""
    assert mode in MODES
    async with stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=environment)) as (read, write):
        async with ClientSession(read, write) as session:
            hello = await session.initialize()
            yield Connection(session, hello.protocolVersion)
