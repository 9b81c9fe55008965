# The agents' image, for those with Docker. Without it: make image.
#
#   docker build -t REGISTRY/liqonet-agent:TAG --build-arg VERSION=TAG .
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/liqonet-agent:TAG --push .
#
# The compiler runs on the machine's own platform and cross-compiles.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY agent agent
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X github.com/liqonet/liqonet/pkg/version.version=$VERSION" \
    -o /liqonet-agent ./agent

# Nothing but the static binary, as in the image of `make image`. The user is
# root because Kubernetes gives capabilities to no other; the manifests drop all
# but NET_ADMIN.
FROM scratch
COPY --from=build /liqonet-agent /liqonet-agent
ENTRYPOINT ["/liqonet-agent"]
