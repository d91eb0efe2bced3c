from __future__ import annotations

import numpy as np
import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.instances import InfeasibleInstance, euclidean
from tasks.routing.readers import read_any, read_costs, read_csv, read_dumas, read_instances, read_npz, truncated, write_instances

DUMAS = """!! a header of words
CUST NO. XCOORD. YCOORD. DEMAND [READY TIME] [DUE DATE] [SERVICE TIME]
 1 16.00 23.00 0.00 0.00 408.00 0.00
 2 22.00 4.00 0.00 62.00 68.00 0.00
 3 12.00 6.00 0.00 181.00 205.00 2.00
 999 0.00 0.00 0.00 0.00 0.00 0.00
"""


def test_dumas_text_keeps_places_windows_and_names(tmp_path):
    path = tmp_path / "n20w20.001.txt"
    path.write_text(DUMAS)
    found = read_dumas(path)
    assert found.labels == ["1", "2", "3"]
    assert found.unit == 19  # the larger extent, 23 - 4
    one = found.instances
    assert torch.allclose(one.early[0] * found.unit, torch.tensor([0.0, 62, 181]).double())
    assert torch.allclose(one.late[0] * found.unit, torch.tensor([408.0, 68, 205]).double())
    assert one.distance[0, 1, 2].item() * found.unit == pytest.approx((10**2 + 2**2) ** 0.5)
    assert one.steps[0, 2, 1].item() * found.unit == pytest.approx(2 + (10**2 + 2**2) ** 0.5)
    floored = read_dumas(path, "floor")
    assert torch.allclose(floored.instances.distance * floored.unit, torch.tensor([[0.0, 19, 17], [19, 0, 10], [17, 10, 0]]).double())


def test_truncated_distances_keep_the_triangle_inequality():
    distance = euclidean(torch.rand((1, 12, 2), generator=seeded(0)) * 9)[0]
    short = truncated(distance)
    assert (short <= distance).all()
    for k in range(12):
        assert (short <= short[:, k : k + 1] + short[k : k + 1]).all()


def test_csv_with_several_instances_names_and_open_ends(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("instance, id, x, y, ready, due, service\na,home,0,0,,,\na,shop,30,40,10,100,5\nb,home,0,0,0,99,0\nb,bank,1,0,0,9,0\n")
    a, b = read_csv(path)
    assert (a.labels, a.unit, b.labels) == (["home", "shop"], 40, ["home", "bank"])
    assert torch.isinf(a.instances.late[0, 0])
    assert a.instances.use[0].tolist() == [0, 0.125]
    assert len(read_any(path)) == 2


def test_npz_of_the_benchmark_in_its_own_units(tmp_path):
    instances = mixed(3, 6, 4)[1]
    windows = torch.stack([instances.early, instances.late], -1) * 100
    path = tmp_path / "tsptw6.npz"
    np.savez(path, locs=(instances.locs * 100).numpy(), time_windows=windows.numpy(), service_time=np.zeros((4, 6)))
    again = read_npz(path)
    assert torch.allclose(again.late, instances.late)
    assert torch.allclose(again.steps, instances.steps)
    assert len(read_npz(path, 2)) == 2
    assert read_any(path)[0].unit == 100
    ports = mixed(3, 6, 4)[2]
    limits = (ports.late * 5).round()
    for demand, drafts in (((ports.use * 5).round(), limits), ((ports.use * 5).round()[:, 1:], limits[:, 1:])):
        np.savez(tmp_path / "tspdl6.npz", locs=ports.locs.numpy(), demand=demand.numpy(), draft_limit=drafts.numpy())
        again = read_npz(tmp_path / "tspdl6.npz")
        assert again.problem == "tspdl"
        assert torch.allclose(again.late[:, 1:], ports.late[:, 1:])
    np.savez(tmp_path / "costs.npz", costs=np.arange(4.0))
    assert read_costs(tmp_path / "costs.npz", 3).tolist() == [0, 1, 2]


def test_own_files_round_trip_exactly(tmp_path):
    for instances in mixed(2, 6, 3):
        write_instances(tmp_path / "set.safetensors", instances, cost=torch.arange(3.0))
        again, held = read_instances(tmp_path / "set.safetensors")
        for name in ("locs", "early", "late", "use", "distance", "steps"):
            assert torch.equal(getattr(again, name), getattr(instances, name))
        assert again.problem == instances.problem
        assert held["cost"].tolist() == [0, 1, 2]


def write_npz(path, **arrays):
    np.savez(path, **{name: np.asarray(value, dtype=float) for name, value in arrays.items()})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "1 2 3\n", "a.txt, line 1: expected id, x, y, demand, ready, due, service, got '1 2 3'"),
        ("a.txt", "1 0 0 0 0 9 0\n2 0 zero 0 0 9 0\n", "line 2: expected seven numbers"),
        ("a.txt", "words\n", "a depot and at least one customer, got 0 lines"),
        ("a.txt", "1 0 0 0 0 9 0\n2 1 1 0 5 4 0\n", "window of node 1 of instance 0 ends before it starts"),
        ("a.csv", "x,y,ready\n0,0,0\n", "no column due"),
        ("a.csv", "x,y,ready,due\n0,0,0,9\n1,one,0,9\n", "row 2: y must be a number, got 'one'"),
        ("a.csv", "x,y,ready,due\n0,0,0,9\n1,,0,9\n", "coordinates of node 1 of instance 0 are not finite"),
        ("a.csv", "x,y,ready,due\n0,0,0,9\n", "N >= 2, got N = 1"),
        ("a.csv", "", "cannot be read as a table"),
        ("a.csv", "x,y,ready,due,service\n0,0,0,9,0\n4,4,0,9,-3\n", r"service time of node 1 of instance 0 .* got -3.0"),
        ("a.npz", "no archive", "cannot be read as NPZ of numbers"),
    ],
)
def test_files_that_are_wrong_are_refused_with_their_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_any(tmp_path / name)
    assert name in str(raised.value)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.npz"])
def test_files_of_other_bytes_are_refused_with_their_name(tmp_path, name):
    (tmp_path / name).write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=name):
        read_any(tmp_path / name)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, locs=np.zeros((2, 4, 2)), time_windows=np.zeros((2, 3, 2)))
    with pytest.raises(ValueError, match=r"a.npz: windows must have shape \(2, 4, 2\)"):
        read_npz(path)
    write_npz(path, locs=np.zeros((1, 3, 2)), draft_limit=[[2, 1, 1]])
    with pytest.raises(InfeasibleInstance, match=r"a.npz: draft limits of instance 0"):
        read_npz(path)
    write_npz(path, places=np.zeros((1, 3, 2)))
    with pytest.raises(ValueError, match="expected locs with time_windows or draft_limit, got places"):
        read_npz(path)
    with pytest.raises(ValueError, match="expected the key costs, got places"):
        read_costs(path)
