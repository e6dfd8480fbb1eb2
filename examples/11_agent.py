"""Give findings to a program: the JSON that 'tilescope advise --json' prints and the MCP server's tool 'advise' returns."""

import asyncio

import tilescope
from tilescope.commands import mcp

run = next(tilescope.recordings("histogram"))
document = asyncio.run(mcp.advise(run.run.id, impl="triton"))

print(document["schema"], "version", document["version"])
for finding in document["findings"]:
    print(finding["title"], finding["bound"] and round(finding["bound"]["ratio"], 2))
