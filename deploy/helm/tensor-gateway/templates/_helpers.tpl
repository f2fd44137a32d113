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
