{{- define "gateway.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Of the hook, whose pod no Service, budget or policy of the gateway selects. */ -}}
{{- define "gateway.validateLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-validate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gateway.configMap" -}}
{{- default (include "gateway.name" .) .Values.existingConfigMap -}}
{{- end -}}

{{- define "gateway.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "gateway.securityContext" -}}
runAsNonRoot: true
runAsUser: 10001
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "gateway.mounts" -}}
- {name: config, mountPath: /etc/gateway, readOnly: true}
{{- if .Values.certificate.enabled }}
- {name: tls, mountPath: /etc/gateway-tls, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The configuration file. `upstream` stands in where it has no server and no model of its own. */ -}}
{{- define "gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $own := $config.upstreams | default dict | keys -}}
{{- range $config.models | default dict }}{{ if . }}{{ if .backend }}{{ $own = append $own .backend }}{{ end }}{{ end }}{{ end -}}
{{- if not $own }}{{ $_ := set $config "upstreams" (dict "models" .Values.upstream) }}{{ end -}}
{{- /* The fsGroup of the pod, so that a sidecar of another user opens the files, too. */ -}}
{{- if and .Values.handOver (not $config.hand_over_group) }}{{ $_ := set $config "hand_over_group" "10001" }}{{ end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* The port of an address: of HOST:PORT, :PORT, PORT, or the default of a variable. "" for none. */ -}}
{{- define "gateway.port" -}}
{{- $text := toString . | trimSuffix "}" -}}
{{- if not (or (kindIs "invalid" .) (has $text (list "off" "false" "null" "")) (hasPrefix "unix:" $text)) -}}
{{- $port := regexFind "[0-9]+$" $text -}}
{{- if not $port }}{{ fail (printf "address %q has no port that the chart can read; expected HOST:PORT" $text) }}{{ end -}}
{{- if ne $port "0" }}{{ $port }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* The ports that clients in other pods use, as JSON: those of the first listener are `http` and `grpc`, others have numbers. */ -}}
{{- define "gateway.ports" -}}
{{- $ports := list -}}
{{- range $index, $listener := .Values.config.listeners -}}
{{- $found := list -}}
{{- range $key := list "http" "grpc" "address" }}{{ $found = append $found (list $key (get $listener $key)) }}{{ end -}}
{{- range $listener.streams }}{{ $found = append $found (list "stream" .address) }}{{ end -}}
{{- range $found -}}
{{- $kind := first . -}}
{{- $port := include "gateway.port" (last .) -}}
{{- $isLocal := regexMatch "^(127[.]|localhost:|\\[::1\\]|[0-9]+$)" (toString (last .)) -}}
{{- if and $port (not $isLocal) -}}
{{- $name := ternary "http" $kind (eq $kind "address") -}}
{{- if or $index (eq $kind "stream") }}{{ $name = printf "%s-%s" $name $port }}{{ end -}}
{{- $isH2c := and (has $kind (list "grpc" "address")) (not $listener.tls) -}}
{{- $ports = append $ports (dict "name" $name "kind" $kind "port" (int $port) "h2c" $isH2c) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $ports }}{{ fail "no listener has a port that other pods reach; expected HOST:PORT with the host 0.0.0.0" }}{{ end -}}
{{- toJson $ports -}}
{{- end -}}

{{- /* The first port for HTTP or gRPC, of which a route of Gateway API needs one. */ -}}
{{- define "gateway.routePort" -}}
{{- $kind := .kind -}}
{{- $found := list }}{{ range include "gateway.ports" .root | fromJsonArray }}{{ if has .kind (list $kind "address") }}{{ $found = append $found .port }}{{ end }}{{ end -}}
{{- if not $found }}{{ fail (printf "%sRoute has no port; expected `%s` or `address` of a listener" $kind $kind) }}{{ end -}}
{{- first $found -}}
{{- end -}}

{{- /* The ports of `admin` that other machines reach, as JSON: `metrics` and `admin`. */ -}}
{{- define "gateway.adminPorts" -}}
{{- $admin := .Values.config.admin | default dict -}}
{{- $ports := list -}}
{{- range $name, $key := dict "metrics" "metrics" "admin" "address" -}}
{{- $text := toString (get $admin $key) -}}
{{- if regexMatch "^(\\*|0\\.0\\.0\\.0|\\[::\\]|\\[::0\\])?:|^\\$" $text -}}
{{- $port := include "gateway.port" $text -}}
{{- if $port }}{{ $ports = append $ports (dict "name" $name "port" (int $port)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{- /* The name of the port that has a page of `admin`: `metrics`, `admin`, or "" for none. */ -}}
{{- define "gateway.metricsPort" -}}
{{- with include "gateway.adminPorts" . | fromJsonArray }}{{ (last .).name }}{{ end -}}
{{- end -}}

{{- /* A probe of the admin port; where probes cannot read it, whether the first port of clients takes connections. */ -}}
{{- define "gateway.probe" -}}
{{- $admin := .root.Values.config.admin | default dict -}}
{{- $tls := $admin.tls | default dict -}}
{{- $isMutual := and $tls.ca (ne (toString $tls.client_certificates) "optional") -}}
{{- $isOpen := or (not (hasKey $admin "open")) (has "probes" ($admin.open | default list)) -}}
{{- $names := list }}{{ range include "gateway.adminPorts" .root | fromJsonArray }}{{ $names = append $names .name }}{{ end -}}
{{- if and (has "admin" $names) $isOpen (not $isMutual) -}}
httpGet: {path: {{ .path }}, port: admin{{ if $tls }}, scheme: HTTPS{{ end }}}
{{- else -}}
tcpSocket: {port: {{ (first (include "gateway.ports" .root | fromJsonArray)).name }}}
{{- end -}}
{{- end -}}

{{- /* What of a value needs a restart, one line each: what `tree`, from files/reload.json, does not have. */ -}}
{{- define "gateway.fixed" -}}
{{- $tree := .tree -}}
{{- $path := .path -}}
{{- if not (kindIs "map" $tree) -}}
{{- if not $tree }}{{ printf "%s=%s\n" $path (toJson .value) }}{{ end -}}
{{- else if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- $below := hasKey $tree $key | ternary (get $tree $key) (get $tree "*") -}}
{{- include "gateway.fixed" (dict "tree" $below "value" $value "path" (printf "%s.%s" $path $key)) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "gateway.fixed" (dict "tree" (get $tree "[]" | default $tree) "value" $value "path" (printf "%s.%d" $path $index)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The hash of what a reload does not change: all of the file, if nothing watches it. */ -}}
{{- define "gateway.restartHash" -}}
{{- $config := include "gateway.config" . | fromYaml -}}
{{- $reload := ($config.lifecycle | default dict).reload | default dict -}}
{{- $watches := eq (toString $reload.watch) "true" -}}
{{- $fixed := include "gateway.fixed" (dict "tree" ($watches | ternary (.Files.Get "files/reload.json" | fromJson) "") "value" $config "path" "") -}}
{{- $fixed = printf "%sevents=%t\n" $fixed (not (empty $config.events)) -}}
{{- range $config.listeners -}}
{{- with .passthrough -}}
{{- $upstream := get $config.upstreams (kindIs "string" . | ternary (toString .) (get (kindIs "map" . | ternary . dict) "upstream" | toString)) | default dict -}}
{{- $url := $upstream.url | default (first ($upstream.urls | default (list ""))) -}}
{{- $fixed = printf "%spassthrough=%s\n" $fixed (splitList "://" (toString $url) | first) -}}
{{- end -}}
{{- end -}}
{{- sha256sum $fixed -}}
{{- end -}}

{{- /* A duration of the configuration in seconds; 0 for what is none, which `gateway validate` reports. */ -}}
{{- define "gateway.seconds" -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" (toString .) -}}
{{- $units := dict "us" 0.000001 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number (toString .)) | default 0.0) -}}
{{- end -}}

{{- /* The time that Kubernetes leaves a pod to end: above `pre_stop` + `drain` of the configuration. */ -}}
{{- define "gateway.grace" -}}
{{- $needed := 0 -}}
{{- if not .Values.existingConfigMap -}}
{{- $lifecycle := .Values.config.lifecycle | default dict -}}
{{- $preStop := include "gateway.seconds" ($lifecycle.pre_stop | default "5s") -}}
{{- $drain := include "gateway.seconds" ($lifecycle.drain | default "25s") -}}
{{- $needed = addf (float64 $preStop) (float64 $drain) 5 | ceil | int -}}
{{- end -}}
{{- max (int .Values.terminationGracePeriodSeconds) $needed -}}
{{- end -}}
