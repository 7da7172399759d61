"""A connection by version 2 of the official Python SDK, which speaks the stateless protocol and the one with sessions."""
import contextlib

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

MODES = ("auto", "legacy")


class Connection:
    def __init__(self, client):
        self._client, self.protocol = client, client.protocol_version

    async def tools(self):
        found, cursor = [], None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return {tool.name: tool.input_schema for tool in found}

    async def call(self, tool, arguments):
        """Is it an error, the structured content, the text."""
        result = await self._client.call_tool(tool, arguments)
        return result.is_error, result.structured_content, "\n".join(part.text for part in result.content if part.type == "text")


@contextlib.asynccontextmanager
async def connect(url, token, mode):
    assert mode in MODES
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield Connection(client)


@contextlib.asynccontextmanager
async def connect_bridge(command, environment, mode):
    """Through a program that speaks MCP on its standard input and output."""
    assert mode in MODES
    program = StdioServerParameters(command=command[0], args=command[1:], env=environment)
    async with Client(stdio_client(program), mode=mode) as client:
        yield Connection(client)
