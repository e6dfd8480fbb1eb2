"""Before you write a kernel: does fusing this chain pay?"""

from tilescope.models import fusion

problem = fusion.parse_problem("16384x4096-bf16")
answer = fusion.ask(fusion.count(fusion.parse_chain("add,relu,mul"), problem), problem, "sm_90")

print(f"up to {answer.bound:.3g}× by the bytes")
for line in answer.lines:
    print(f"{line.topic:10} {line.text}")
