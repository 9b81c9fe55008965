#!/usr/bin/env bash
# Installs the distribution's packages that the lab (test/lab) and tests need on a
# fresh Debian or Ubuntu machine, and those named as arguments. What is installed
# already is left alone, and where nothing is missing, nothing is done.
#
# With --list, prints the packages' names instead.
set -euo pipefail

packages=(
  apt                         # fetches the kernel of test/vm
  ca-certificates             # Go modules are fetched by https
  conntrack                   # to look at and delete connections in tests
  containernetworking-plugins # bridge, host-local, portmap, loopback
  dbus-daemon                 # firewalld needs one of its own
  ethtool                     # segmentation offload of nodes is switched off in tests
  firewalld                   # a firewall on nodes of the lab, see below
  gcc                         # a part of flannel is written in C
  iperf3                      # measures next to the benchmark's own load
  iproute2                    # ip, to look at nodes
  ipset                       # kube-router, which enforces NetworkPolicies in tests
  iptables                    # kube-proxy, port mappings
  kmod                        # modprobe, for kernels with modules
  libc6-dev                   # gcc needs it
  mount                       # the kubelet mounts volumes with it
  nftables                    # kube-proxy in nftables mode
  procps                      # pgrep, sysctl, to look at nodes
  prometheus                  # promtool, which tests alerts; the server, for the dashboard
  runc                        # starts containers
  qemu-system-x86             # the virtual machine of test/vm
  tmux                        # the terminal of recordings
  util-linux                  # nsenter
  xz-utils                    # its kernel modules are compressed
)

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi
packages+=("$@")

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

echo "installing: ${missing[*]}" >&2
as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install-packages.sh: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
# firewalld is for the lab's nodes, and prometheus for tests. Their packages would have systemd
# start them on this very machine, now and whenever it boots; of a unit that is masked it does neither.
for service in firewalld prometheus; do
  if [[ " ${missing[*]} " == *" $service "* ]]; then
    "${as_root[@]}" mkdir -p /etc/systemd/system
    "${as_root[@]}" ln -sfn /dev/null "/etc/systemd/system/$service.service"
    echo "$service is masked: it does not run on this machine unless you say 'systemctl unmask $service'" >&2
  fi
done
# Where there is no systemd, packages start their services by themselves, unless this file forbids it.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
