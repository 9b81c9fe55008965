# The agents' image, for those with Docker. Without it: make image.
#
#   docker build -t REGISTRY/liqonet-agent:TAG --build-arg VERSION=TAG .
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/liqonet-agent:TAG --push .
#
# The compiler runs on the machine's own platform and cross-compiles. A tag can be moved:
# --build-arg GO_IMAGE=golang:1.26@sha256:... pins the one that you have checked.
ARG GO_IMAGE=golang:1.26
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY LICENSE ./
COPY agent agent
COPY pkg pkg
COPY scripts/licenses scripts/licenses
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X github.com/liqonet/liqonet/pkg/version.version=$VERSION" \
    -buildvcs=false -o /liqonet-agent ./agent
RUN go run ./scripts/licenses -o /LICENSES ./agent

# Nothing but the static binary and its licences, as in the image of `make image`. The user is
# root because Kubernetes gives capabilities to no other; the manifests drop all
# but NET_ADMIN.
FROM scratch
COPY --from=build /liqonet-agent /LICENSES /
ENTRYPOINT ["/liqonet-agent"]
