from __future__ import annotations

import pytest

from farm.api.v1 import job_pb2


@pytest.mark.parametrize("open_store", ["postgresql"], indirect=True)
def test_tracker_on_postgresql_keeps_jobs_over_a_restart(
    start_farm, run_async, open_store, postgresql
):
    open_store().close()

    async def body() -> None:
        async with start_farm(database=postgresql) as farm:
            await farm.peer("a", device_ids=("dev0",))
            done = (await farm.client.submit(client_key="k")).job_id
            assert (await farm.client.wait(done))[-1].verdict == job_pb2.VERDICT_PASS
            queued = (await farm.client.submit("arch=arm", wait_for_device=True)).job_id
        async with start_farm(database=postgresql) as farm:
            assert (await farm.client.job(done)).verdict == job_pb2.VERDICT_PASS
            assert (await farm.client.submit(client_key="k")).job_id == done
            await farm.peer("a", device_ids=("dev0",), labels={"arch": "arm"})
            assert (await farm.client.wait(queued))[-1].verdict == job_pb2.VERDICT_PASS

    run_async(body)
