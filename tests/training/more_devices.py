"""Run by test_devices like `devices`: the meshes that are left out there."""

from tests.training.devices import print_report

if __name__ == "__main__":
    print_report([(2, "Auto", False), (8, "Auto", False)])
